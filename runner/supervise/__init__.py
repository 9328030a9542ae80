"""`runner.supervise`: starts a command again when its run is lost."""
