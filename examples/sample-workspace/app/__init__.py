"""Short links: a small web service that keeps links in MySQL and counts in Redis."""
