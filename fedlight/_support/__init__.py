"""Small parts that know nothing of federations."""
