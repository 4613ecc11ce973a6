//! Commands about transactions.

use super::super::{Command, Keys, multi};

/// In the order of their names.
pub(super) const COMMANDS: &[Command] = &[
    Command::new("discard", 1, multi::discard)
        .about("2.0.0", "transactions", "Forgets what was queued.")
        .flags(&["noscript", "loading", "stale", "fast", "allow_busy"])
        .categories(&["@fast", "@transaction"])
        .immediate(),
    Command::new("exec", 1, multi::exec)
        .about("1.2.0", "transactions", "Executes what was queued as one commit.")
        .flags(&["noscript", "loading", "stale", "skip_slowlog"])
        .categories(&["@slow", "@transaction"])
        .immediate(),
    Command::new("multi", 1, multi::multi)
        .about("1.2.0", "transactions", "Begins to queue commands.")
        .flags(&["noscript", "loading", "stale", "fast", "allow_busy"])
        .categories(&["@fast", "@transaction"])
        .immediate(),
    Command::new("unwatch", 1, multi::unwatch)
        .about("2.2.0", "transactions", "Watches nothing any more.")
        .flags(&["noscript", "loading", "stale", "fast", "allow_busy"])
        .categories(&["@fast", "@transaction"]),
    Command::new("watch", -2, multi::watch)
        .about(
            "2.2.0",
            "transactions",
            "Has the next EXEC do nothing if a key changes before.",
        )
        .flags(&["noscript", "loading", "stale", "fast", "allow_busy"])
        .categories(&["@fast", "@transaction"])
        .keys(&[Keys::to(1, -1, 1, &["RO"])])
        .immediate(),
];
