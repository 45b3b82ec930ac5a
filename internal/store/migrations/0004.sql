-- How to reach the services of an instance: the variables that its commands
-- get, passwords among them. JSON, an object of strings.
ALTER TABLE leases ADD COLUMN connection TEXT CHECK (connection IS NULL OR json_valid(connection));
ALTER TABLE snapshots ADD COLUMN connection TEXT CHECK (connection IS NULL OR json_valid(connection));
