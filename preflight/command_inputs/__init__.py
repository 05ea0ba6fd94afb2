"""The launch and the host that a command is given, as records.

It opens captures and reads launch files; of a Kustomize folder it asks kubectl.
"""
