"""What hosts share and no host owns."""
