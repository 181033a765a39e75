"""Trainers: what holds the policy's weights and changes them."""
