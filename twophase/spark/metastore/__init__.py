"""The Hive catalog's metastore accessed through the session: Spark's own client, of an embedded or remote metastore."""
