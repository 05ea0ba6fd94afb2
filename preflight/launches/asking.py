"""Names of programs that ask a server and start none, for readers and those that judge alike."""

import re

# Programs that ask a server, or make its files: named so, they start none.
ASKING = re.compile(
    r"(?:.*[-_/.])?(?:analy[sz]e|bench|benchmark|check|client|collect_env|convert|download|eval"
    r"|evaluate|health|hello|merge|plot|prepare|preprocess|profile|quantize|query|report|request"
    r"|requests|send|setup|summarize|test|tests|validate|version|wait|warmup)(?:[-_.0-9][^/]*)?"
    r"|pip|conda",
    re.IGNORECASE,
)
