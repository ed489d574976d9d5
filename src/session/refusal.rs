//! The replies to whoever a limit refuses.

use super::record::{Record, Refused, RefusedBy};
use super::{MAX_RECORDED, State};
use crate::policy::event::Stage;
use crate::policy::verdict::{Code, Meaning, Refusal, Suspended, Verb, Verdict};
use crate::smtp::reply::Reply;

impl State {
    /// The reply to whoever is over a limit, and the record of it.
    pub(super) fn refused(
        &mut self,
        refusal: Refusal,
        stage: Stage,
        from: Option<String>,
        to: Option<String>,
    ) -> Reply {
        self.patience.count_refusal();
        let reference = self.next_reference();
        let (reply, closes) = reply(&refusal, stage, &self.options.hostname, &reference);
        self.closing |= closes;
        let by = RefusedBy::Limit { refusal: Box::new(refusal), reference };
        self.record_refusal(Refused { stage, from, to, reply: reply.clone(), by });
        reply
    }

    /// The reply to whoever is suspended, and the record of it.
    pub(super) fn suspended(
        &mut self,
        suspended: Suspended,
        stage: Stage,
        from: Option<String>,
        to: Option<String>,
    ) -> Reply {
        self.patience.count_refusal();
        let reference = self.next_reference();
        let reply = suspended_reply(&suspended, &reference);
        let by = RefusedBy::Suspension { suspended: Box::new(suspended), reference };
        self.record_refusal(Refused { stage, from, to, reply: reply.clone(), by });
        reply
    }

    /// Records what limits say that the client does not hear. Who is over again and again does not fill the log.
    pub(super) fn remark(&mut self, verdict: &mut Verdict, stage: Stage) {
        for remark in std::mem::take(&mut verdict.remarks) {
            self.remarks += 1;
            self.records.push(Record::LimitExceeded { remark, stage, is_logged: self.remarks <= MAX_RECORDED });
        }
        self.records.extend(verdict.suspensions.drain(..).map(Record::Suspended));
        self.records.extend(verdict.notices.drain(..).map(Record::Noticed));
    }
}

/// What whoever is refused at a stage hears, and whether that ends the session. `reference` is under what the log has more.
pub fn reply(refusal: &Refusal, stage: Stage, hostname: &str, reference: &str) -> (Reply, bool) {
    let code = code(refusal, stage);
    let closes = refusal.ends_session(Some(stage)) || code.basic == 421;
    let host = if code.basic == 421 { format!("{hostname} ") } else { String::new() };
    let [class, subject, detail] = code.enhanced;
    (Reply::new(code.basic, format!("{class}.{subject}.{detail} {host}{}", refusal.text(reference))), closes)
}

/// What whoever is suspended hears.
pub fn suspended_reply(suspended: &Suspended, reference: &str) -> Reply {
    Reply::new(550, format!("5.7.1 {}", suspended.text(reference)))
}

/// The code of a refusal: the limit's own, or what clients make the best of.
fn code(refusal: &Refusal, stage: Stage) -> Code {
    if let Some(code) = refusal.code() {
        return code;
    }
    match (refusal.verb, refusal.meaning(), stage) {
        (Verb::Drop, ..) => Code::new(421, [4, 7, 0]),
        (Verb::Suspend, _, Stage::End) => Code::new(550, [5, 7, 1]),
        (Verb::Deny | Verb::Suspend, ..) | (_, Meaning::Never, _) => for_good(stage),
        // RFC 5321 §4.5.3.1.10: 452 for recipients, so that the message may go to fewer.
        (_, Meaning::TooLarge | Meaning::TooMuchForMessage | Meaning::TooLate, Stage::Rcpt) => {
            Code::new(452, [4, 5, 3])
        }
        (_, Meaning::TooLarge | Meaning::TooMuchForMessage, Stage::Mail | Stage::Data | Stage::End) => {
            Code::new(552, [5, 3, 4])
        }
        (_, Meaning::TooLarge, _) => for_good(stage),
        _ => for_now(stage),
    }
}

fn for_now(stage: Stage) -> Code {
    match stage {
        Stage::Connect | Stage::Command => Code::new(421, [4, 7, 0]),
        // Never 535: clients would ask for the password.
        Stage::Auth => Code::new(454, [4, 7, 0]),
        // Not 452, upon which some send the rest at once, and which some take for a matter of size.
        Stage::Mail | Stage::Rcpt | Stage::Data => Code::new(450, [4, 7, 1]),
        Stage::End => Code::new(451, [4, 7, 1]),
    }
}

fn for_good(stage: Stage) -> Code {
    match stage {
        Stage::Mail | Stage::Rcpt | Stage::Data => Code::new(550, [5, 7, 1]),
        // The codes that RFC 5321 §4.3.2 has for these stages, and RFC 4954 §4 no other for AUTH.
        Stage::Connect | Stage::Command | Stage::Auth | Stage::End => Code::new(554, [5, 7, 1]),
    }
}
