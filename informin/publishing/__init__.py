"""What a run was, the exported folder, its card, the Hub."""
