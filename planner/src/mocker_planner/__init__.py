"""Writes scaling decisions and waits until they are carried out."""
