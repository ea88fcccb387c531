"""The Hive catalog's metastore as the session itself knows it: Spark's own client, embedded or of a server."""
