//! Limits of a Weir that only answers Postfix: Postfix does not tell everything that limits can count.

use crate::policy::limit::Count;

/// Returns a warning about a limit that counts nothing, or less than in Weir's own sessions. `is_at_once`: the limit
/// counts sessions at once.
pub fn doubt(count: Count, is_at_once: bool) -> Option<&'static str> {
    Some(match count {
        Count::LoginFailures => "nothing is counted: Postfix does not tell of failed logins",
        Count::Rejections => "nothing is counted: Postfix does not tell which recipients other servers reject",
        Count::Bounces | Count::Complaints => {
            "nothing is counted: Postfix sends the mail, and Weir stores no queue ids"
        }
        Count::Sessions if is_at_once => "nothing is counted: Postfix does not tell when a session ends",
        Count::Commands => "only EHLO, HELO, VRFY, ETRN, MAIL, RCPT and DATA are counted: Postfix asks at no others",
        _ => return None,
    })
}
