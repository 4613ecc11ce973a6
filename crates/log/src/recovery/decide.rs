//! The decision table of recovery. `docs/design/formats/log.md` shows it; each row has a test here.

use std::fmt;

/// What is known at a position where a frame should start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Evidence {
    /// A later epoch recorded that this one ends exactly here.
    pub(crate) epoch_ends_here: bool,
    /// A valid frame stands here: checksum, position and epoch are right.
    pub(crate) frame: bool,
    /// That frame reaches beyond the end that a later epoch recorded.
    pub(crate) frame_crosses_end: bool,
    /// A later epoch recorded an end beyond this position, or this epoch's header says that
    /// recovery had copied more than this forward.
    pub(crate) below_recorded_end: bool,
    /// A valid later frame, or a segment of a later epoch, records that this position was durable.
    pub(crate) below_mark: bool,
    /// The file of the newest epoch that holds this position is shorter than it was when the frames
    /// reached up to here, and no close says that nothing followed.
    pub(crate) cut_short: bool,
    /// The ring of the process before is there, matches, and either the segments are good up to its
    /// mark or complete frames in the ring lead there from this position.
    pub(crate) ring: bool,
}

/// What recovery does at a position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Decision {
    /// Go on in the next epoch.
    NextEpoch,
    /// Take the frame, go on behind it.
    Take,
    /// What was durable is not there: refuse to open.
    Corrupt(Proof),
    /// Go on in the ring.
    Ring,
    /// What stood here, if anything did, was cut off: the log ends here, and that is reported, or
    /// refused, or what is missing is passed over.
    CutShort,
    /// The log ends here.
    End,
}

/// How it is known that something durable is missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Proof {
    CrossesEnd,
    RecordedEnd,
    LaterFrame,
}

impl fmt::Display for Proof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::CrossesEnd => "a frame that ends where the next epoch begins",
            Self::RecordedEnd => "a frame, since a segment header records that the log was durable beyond",
            Self::LaterFrame => {
                "a frame, since a later frame or segment records that the log was durable beyond"
            }
        })
    }
}

/// The table, from the first row that matches down.
pub(crate) fn decide(e: Evidence) -> Decision {
    match e {
        Evidence {
            epoch_ends_here: true,
            ..
        } => Decision::NextEpoch,
        Evidence {
            frame: true,
            frame_crosses_end: true,
            ..
        } => Decision::Corrupt(Proof::CrossesEnd),
        Evidence { frame: true, .. } => Decision::Take,
        // Before any proof that something was durable: it was, and here it is.
        Evidence { ring: true, .. } => Decision::Ring,
        Evidence {
            below_recorded_end: true,
            ..
        } => Decision::Corrupt(Proof::RecordedEnd),
        Evidence { below_mark: true, .. } => Decision::Corrupt(Proof::LaterFrame),
        Evidence { cut_short: true, .. } => Decision::CutShort,
        Evidence { .. } => Decision::End,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOTHING: Evidence = Evidence {
        epoch_ends_here: false,
        frame: false,
        frame_crosses_end: false,
        below_recorded_end: false,
        below_mark: false,
        cut_short: false,
        ring: false,
    };

    #[test]
    fn each_row_decides() {
        let rows = [
            (
                Evidence {
                    epoch_ends_here: true,
                    ..NOTHING
                },
                Decision::NextEpoch,
            ),
            (
                Evidence {
                    frame: true,
                    frame_crosses_end: true,
                    ..NOTHING
                },
                Decision::Corrupt(Proof::CrossesEnd),
            ),
            (
                Evidence {
                    frame: true,
                    ..NOTHING
                },
                Decision::Take,
            ),
            (
                Evidence {
                    below_recorded_end: true,
                    below_mark: true,
                    ring: true,
                    ..NOTHING
                },
                Decision::Ring,
            ),
            (
                Evidence {
                    below_recorded_end: true,
                    ..NOTHING
                },
                Decision::Corrupt(Proof::RecordedEnd),
            ),
            (
                Evidence {
                    below_mark: true,
                    ..NOTHING
                },
                Decision::Corrupt(Proof::LaterFrame),
            ),
            (
                Evidence {
                    ring: true,
                    ..NOTHING
                },
                Decision::Ring,
            ),
            (
                Evidence {
                    below_mark: true,
                    cut_short: true,
                    ..NOTHING
                },
                Decision::Corrupt(Proof::LaterFrame),
            ),
            (
                Evidence {
                    cut_short: true,
                    ring: true,
                    ..NOTHING
                },
                Decision::Ring,
            ),
            (
                Evidence {
                    cut_short: true,
                    ..NOTHING
                },
                Decision::CutShort,
            ),
            (NOTHING, Decision::End),
        ];
        for (evidence, decision) in rows {
            assert_eq!(decide(evidence), decision, "{evidence:?}");
        }
    }

    #[test]
    fn no_evidence_of_loss_is_ever_overlooked() {
        // All 128 inputs: the log ends at a bad frame only without any proof that it was durable,
        // and goes on there only in a ring that has what was.
        for bits in 0..128_u32 {
            let on = |bit: u32| bits & (1 << bit) != 0;
            let e = Evidence {
                epoch_ends_here: on(0),
                frame: on(1),
                frame_crosses_end: on(2),
                below_recorded_end: on(3),
                below_mark: on(4),
                ring: on(5),
                cut_short: on(6),
            };
            let proof = e.below_recorded_end || e.below_mark;
            match decide(e) {
                Decision::NextEpoch => assert!(e.epoch_ends_here),
                Decision::Take => assert!(e.frame && !e.frame_crosses_end),
                Decision::Corrupt(_) => {
                    assert!(!e.epoch_ends_here && (proof && !e.ring || e.frame_crosses_end));
                }
                Decision::Ring => assert!(e.ring && !e.frame),
                Decision::CutShort => assert!(e.cut_short && !e.ring && !e.frame && !proof),
                Decision::End => assert!(!e.ring && !e.frame && !proof && !e.cut_short),
            }
        }
    }
}
