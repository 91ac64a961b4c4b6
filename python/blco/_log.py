import logging

#: What the package says, by the usual rules of :mod:`logging`: nothing, until somebody listens.
log = logging.getLogger("blco")
log.addHandler(logging.NullHandler())
