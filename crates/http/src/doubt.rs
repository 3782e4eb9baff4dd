//! Why a connection is no longer framed.

use std::fmt;

macro_rules! doubts {
    ($($(#[$doc:meta])* $variant:ident $name:literal $sentence:literal,)*) => {
        /// Why a connection is passed through: the first thing on it that two readers could take in
        /// two ways, or that is not HTTP/1 at all.
        ///
        /// [`Doubt::name`] is for counters, the [`Display`](fmt::Display) form is a sentence for
        /// operators.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Doubt { $($(#[$doc])* $variant,)* }

        impl Doubt {
            /// Every doubt, in the order of their declaration.
            pub const ALL: &[Doubt] = &[$(Doubt::$variant,)*];

            /// The name under which it is counted: lower case, with underscores.
            pub fn name(self) -> &'static str {
                match self { $(Doubt::$variant => $name,)* }
            }

            fn sentence(self) -> &'static str {
                match self { $(Doubt::$variant => $sentence,)* }
            }
        }
    };
}

doubts! {
    // Something else than HTTP/1.x.
    /// RFC 8446 §5.1: the first byte is that of a handshake record.
    Tls "tls"
        "The client speaks TLS; only plain HTTP can be framed.",
    /// RFC 9113 §3.4: the connection preface.
    Http2 "http2"
        "The client began with the preface of HTTP/2.",
    /// RFC 9112 §2.3, and RFC 1945 §4.1: a request line without a version.
    Http09 "http09"
        "A request line names no version, as in HTTP/0.9, whose replies have no head.",
    /// RFC 9112 §2.3.
    Version "version"
        "A message has a version other than HTTP/1.0 and HTTP/1.1.",
    /// RFC 9110 §7.8 and §15.2.2.
    Upgraded "upgraded"
        "The server switched to another protocol (101), such as WebSocket.",
    /// RFC 9110 §9.3.6.
    Tunnel "tunnel"
        "The server accepted a CONNECT; what follows belongs to the tunnel.",

    // A head that does not say one thing only.
    /// RFC 9112 §3, and §2.2 for what may stand before it.
    BadRequestLine "bad_request_line"
        "A request does not begin with a method, a target and a version with one space between them.",
    /// RFC 9112 §4.
    BadStatusLine "bad_status_line"
        "A reply does not begin with a version and a status code from 100 to 599.",
    /// RFC 9112 §2.2: some readers take a lone LF for the end of a line.
    BareLf "bare_lf"
        "A line ends with LF without CR.",
    /// RFC 9112 §2.2: some readers take a lone CR for the end of a line.
    BareCr "bare_cr"
        "A line contains CR that is not followed by LF.",
    /// RFC 9112 §5.2.
    ObsFold "obs_fold"
        "A header line begins with white space, the obsolete way to continue the line before it.",
    /// RFC 9112 §5.1.
    SpaceBeforeColon "space_before_colon"
        "White space stands between a field's name and its colon.",
    /// RFC 9110 §5.1: a name is a token.
    BadFieldName "bad_field_name"
        "A field's name is empty, has no colon behind it, or contains a character it must not.",
    /// RFC 9110 §5.5: control characters.
    BadFieldValue "bad_field_value"
        "A field's value contains a control character.",
    /// [`Limits::head_bytes`](crate::Limits::head_bytes).
    HeadTooLarge "head_too_large"
        "A head, a trailer section or a chunk's first line is longer than the limit.",
    /// [`Limits::fields`](crate::Limits::fields).
    TooManyFields "too_many_fields"
        "A head or a trailer section has more fields than the limit.",

    // A body whose length is not certain.
    /// RFC 9112 §6.3, rule 3.
    LengthAndEncoding "length_and_encoding"
        "A message has Content-Length and Transfer-Encoding; readers may follow the one or the other.",
    /// RFC 9112 §6.3, rule 5. Equal values are a doubt too: a reader may refuse them or merge them.
    RepeatedLength "repeated_length"
        "A message has more than one Content-Length.",
    /// RFC 9110 §8.6.
    BadLength "bad_length"
        "A Content-Length is not a plain decimal number, or too large.",
    /// RFC 9112 §6.3, rule 4, and §7.1: chunked is there once, as the last one.
    BadEncoding "bad_encoding"
        "A Transfer-Encoding is not a list of registered codings that ends with chunked, its only one.",
    /// RFC 9112 §6.1.
    EncodingInHttp10 "encoding_in_http10"
        "A message of HTTP/1.0, or a reply to one, has Transfer-Encoding, which HTTP/1.0 does not know.",
    /// RFC 9110 §15.2, §15.3.5: 1xx and 204 have no body, yet one is announced.
    BodyForbidden "body_forbidden"
        "A reply that cannot have a body (1xx or 204) announces one.",
    /// RFC 9112 §7.1.
    BadChunk "bad_chunk"
        "A chunk's size, its extension, or what ends the chunk is malformed.",
    /// RFC 9110 §6.5.1.
    FramingInTrailer "framing_in_trailer"
        "A trailer section contains Content-Length or Transfer-Encoding.",

    // Messages that do not fit to each other.
    /// RFC 9110 §3.4: a reply answers a request.
    ReplyWithoutRequest "reply_without_request"
        "The server sent bytes while no request waited for a reply.",
    /// RFC 9112 §9.6.
    BytesAfterClosingReply "bytes_after_closing_reply"
        "The server sent bytes behind a reply that ends the connection.",
    /// RFC 9112 §9.6.
    BytesAfterLastRequest "bytes_after_last_request"
        "The client sent bytes behind a request that it said was its last.",
    /// RFC 9110 §9.3.6: whether they belong to the tunnel is not known before the reply.
    BytesBehindConnect "bytes_behind_connect"
        "The client sent bytes behind a CONNECT before the server replied to it.",
    /// RFC 9110 §9.3.6: a CONNECT has no content.
    ConnectWithBody "connect_with_body"
        "A CONNECT announces a body.",
    /// RFC 9110 §10.1.1: whether the client now sends the body or its next request is not known.
    ContinueRefused "continue_refused"
        "The server replied while the client waited for 100 (Continue), and did not end the connection.",
    /// RFC 9110 §15.2.
    InterimToHttp10 "interim_to_http10"
        "The server sent an interim reply (1xx) to a request of HTTP/1.0, which does not know it.",
    /// [`Limits::unanswered`](crate::Limits::unanswered).
    TooManyUnanswered "too_many_unanswered"
        "More requests wait for a reply than the limit allows.",

    // Streams that end or go on where they should not.
    /// RFC 9112 §8.
    TruncatedRequest "truncated_request"
        "The client ended its stream within a request.",
    /// RFC 9112 §8.
    TruncatedReply "truncated_reply"
        "The server ended its stream within a reply.",
    /// What was fed is not what follows what was fed before.
    Gap "gap"
        "A part of the stream is missing, came twice, or lies behind its end.",
}

impl fmt::Display for Doubt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.sentence())
    }
}
