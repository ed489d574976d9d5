"""Reads messages, each in hexadecimal on a line. Prints the addresses of all From fields of each message, as Python's
email package finds them: a JSON list on a line, or null if the package raises an exception."""

import email
import email.policy
import json
import sys

for line in sys.stdin:
    message = email.message_from_bytes(bytes.fromhex(line), policy=email.policy.default)
    try:
        fields = message.get_all("From", [])
        found = [address.addr_spec for field in fields for address in field.addresses]
        # Python keeps octets beyond ASCII as surrogates.
        print(json.dumps([text.encode(errors="surrogateescape").decode(errors="replace") for text in found]))
    except Exception:
        print("null")
