"""ID specs: the bytes of a record that name the logical message, and their digest, which a store keeps.

    id_spec("header:dedup-id")      header("dedup-id")
    id_spec("json:/tenant+key")     json("/tenant") + key()

=========================== ============================================================== ======================
text                        ID                                                             no ID
=========================== ============================================================== ======================
header:NAME                 value of the last header of that name (case-sensitive)         absent, null
key                         key                                                            null
unframed-key                key behind a schema registry's framing (5 bytes)               null, without framing
json:/POINTER               string or signed 64-bit integer in the value (RFC 6901)        anything else
cloudevents                 ``id`` and ``source`` of an event: in headers ``ce_id`` and    absent, null, empty
                            ``ce_source`` (case-insensitive), or members of the value
value                       the whole value (a last resort)                                null
py:MODULE:CALLABLE@VERSION  ``str`` or ``int`` that the callable returns for the `Record`  None, an exception
A+B                         both, in this order                                            one of them is missing
=========================== ============================================================== ======================

`function` takes a function of your program in place of a text, for consumers only. An ID of more than 65,536 bytes
counts as no ID.
"""

from dedup_sdk.ids._columns import MAX_ID_BYTES, Fields, Ids, RecordFields, digest_one, digest_parts
from dedup_sdk.ids._spec import (
    IdSpec,
    Leaf,
    cloudevents,
    function,
    header,
    id_spec,
    json,
    key,
    py,
    unframed_key,
    value,
)

__all__ = [
    "MAX_ID_BYTES",
    "Fields",
    "IdSpec",
    "Ids",
    "Leaf",
    "RecordFields",
    "cloudevents",
    "digest_one",
    "digest_parts",
    "function",
    "header",
    "id_spec",
    "json",
    "key",
    "py",
    "unframed_key",
    "value",
]
