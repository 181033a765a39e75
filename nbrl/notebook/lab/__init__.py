"""Views that compare: estimators, losses, rewards, policies; and what samples look like."""
