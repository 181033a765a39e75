"""The verb ``score``: rollouts and rewards to scored samples. May import what ``runtime`` may."""
