"""Views that can be used: the sample browser, the estimator lab, the reward bench."""
