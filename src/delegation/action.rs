//! Answer to a request: what Postfix does with the command (access(5), SMTPD_POLICY_README).

use crate::smtp::reply::Reply;
use std::borrow::Cow;
use std::sync::Arc;

/// Answer to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// No objection: Postfix goes on with its next restriction.
    Dunno,
    /// Postfix puts the message on hold, because a limit routes it to this upstream.
    Hold(Arc<str>),
    /// Postfix refuses the command with the code and the text of this reply. After 421 it ends the SMTP session.
    Refuse(Reply),
    /// Weir cannot decide at the moment. Postfix refuses the command for now, unless another restriction refuses it for
    /// good.
    Undecided,
    /// The request cannot be used, for this reason.
    Unusable(String),
}

impl Action {
    /// Returns the answer in the form of the protocol: `action=…`, and an empty line.
    pub fn line(&self) -> Cow<'static, str> {
        match self {
            Self::Dunno => "action=DUNNO\n\n".into(),
            Self::Hold(upstream) => format!("action=HOLD a limit routes this message to {upstream}\n\n").into(),
            // An answer is one line, and the text of a reply has no control characters.
            Self::Refuse(reply) => {
                let texts: Vec<&str> = reply.texts().collect();
                let class = format!("{}.", reply.code() / 100);
                // Lines after the first repeat the enhanced code.
                let rest = texts.iter().skip(1).map(|text| match text.split_once(' ') {
                    Some((code, rest)) if code.starts_with(&class) => rest,
                    _ => *text,
                });
                let text: Vec<&str> = texts.first().copied().into_iter().chain(rest).collect();
                format!("action={} {}\n\n", reply.code(), text.join(" ")).into()
            }
            Self::Undecided => "action=DEFER_IF_PERMIT 4.3.0 This cannot be answered now; try again later\n\n".into(),
            Self::Unusable(reason) => {
                format!("action=DEFER_IF_PERMIT 4.3.5 Unusable policy request: {reason}\n\n").into()
            }
        }
    }

    /// Returns the word for the log and the metrics.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Dunno => "dunno",
            Self::Hold(_) => "hold",
            Self::Refuse(_) => "refuse",
            Self::Undecided => "undecided",
            Self::Unusable(_) => "unusable",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_one_line_and_an_empty_line() {
        for (action, line) in [
            (Action::Dunno, "action=DUNNO"),
            (Action::Hold("slow".into()), "action=HOLD a limit routes this message to slow"),
            (Action::Refuse(Reply::new(450, "4.7.1 Later (a-b-1)")), "action=450 4.7.1 Later (a-b-1)"),
            (
                Action::Refuse(Reply::lines(550, ["5.7.1 This user is", "5.7.1 suspended"])),
                "action=550 5.7.1 This user is suspended",
            ),
            (Action::Unusable("x".to_owned()), "action=DEFER_IF_PERMIT 4.3.5 Unusable policy request: x"),
        ] {
            assert_eq!(action.line(), format!("{line}\n\n"));
        }
    }
}
