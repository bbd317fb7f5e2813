"""Stands between Ray Tune's trials and the pools of workers: messages, and what each trial waits for."""
