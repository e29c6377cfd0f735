"""What `catalejo bench ...` runs. Nothing here is imported by the server."""
