"""The dashboard (`sfill-web`): reads the database, changes nothing."""
