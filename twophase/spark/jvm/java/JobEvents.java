package twophase;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.function.Consumer;
import org.apache.spark.scheduler.JobFailed;
import org.apache.spark.scheduler.SparkListener;
import org.apache.spark.scheduler.SparkListenerJobEnd;
import org.apache.spark.scheduler.SparkListenerJobStart;
import org.apache.spark.scheduler.SparkListenerTaskEnd;
import org.apache.spark.scheduler.StageInfo;

/** Passes on the events of twophase's own jobs, each as one text; those of all others stay in the JVM. */
public final class JobEvents extends SparkListener {
    private static final String TAGS = "spark.job.tags";
    private static final String OWN = "twophase-";
    private volatile Consumer python;
    /** The stages of each job; used by the thread of one queue only. */
    private final Map jobs = new HashMap();

    public void tell(Consumer consumer) {
        python = consumer;
    }

    public void onJobStart(SparkListenerJobStart event) {
        Properties properties = event.properties();
        String tags = properties == null ? null : properties.getProperty(TAGS);
        if (tags == null || !isOwn(tags)) {
            return;
        }
        List ids = new ArrayList();
        List stages = new ArrayList();
        for (Iterator each = Nodes.listed(event.stageInfos()).iterator(); each.hasNext();) {
            StageInfo stage = (StageInfo) each.next();
            ids.add(Integer.valueOf(stage.stageId()));
            stages.add(new int[] {stage.stageId(), stage.numTasks()});
        }
        jobs.put(Integer.valueOf(event.jobId()), ids);
        Map facts = new HashMap();
        facts.put("job", Integer.valueOf(event.jobId()));
        facts.put("tags", Arrays.asList(tags.split(",")));
        facts.put("stages", stages);
        python.accept(Nodes.json(facts));
    }

    public void onJobEnd(SparkListenerJobEnd event) {
        if (jobs.remove(Integer.valueOf(event.jobId())) == null) {
            return;
        }
        Map facts = new HashMap();
        facts.put("job", Integer.valueOf(event.jobId()));
        if (event.jobResult() instanceof JobFailed) {
            facts.put("error", String.valueOf(((JobFailed) event.jobResult()).exception().getMessage()));
        }
        python.accept(Nodes.json(facts));
    }

    public void onTaskEnd(SparkListenerTaskEnd event) {
        if (jobs.isEmpty() || event.taskInfo() == null || !event.taskInfo().successful()) {
            return;
        }
        Integer stage = Integer.valueOf(event.stageId());
        for (Iterator each = jobs.values().iterator(); each.hasNext();) {
            if (((List) each.next()).contains(stage)) {
                Map facts = new HashMap();
                facts.put("stage", stage);
                python.accept(Nodes.json(facts));
                return;
            }
        }
    }

    private static boolean isOwn(String tags) {
        String[] all = tags.split(",");
        for (int index = 0; index < all.length; index++) {
            if (all[index].startsWith(OWN)) {
                return true;
            }
        }
        return false;
    }
}
