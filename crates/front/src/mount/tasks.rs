//! The task that a request belongs to, by the title that PostgreSQL gives its processes.

use std::path::Path;

use collie_io::{Device, OpenMode};

/// A query, or what else belongs together: the process whose work it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct TaskId(pub(super) u32);

/// Whether a user waits for it. The order is that of service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Class {
    Foreground,
    /// Work of the server's background processes.
    Background,
}

/// The process that opened a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Opener {
    pub(super) task: TaskId,
    pub(super) class: Class,
}

/// A process title is far shorter.
const TITLE_MAX: usize = 512;

/// The background processes of a server, as their titles begin after the name of the cluster.
const BY_ITSELF: [&str; 6] = [
    "autovacuum worker",
    "autovacuum launcher",
    "background writer",
    "checkpointer",
    "archiver",
    "walsummarizer",
];
const WORKER: &str = "parallel worker for PID ";

impl Opener {
    /// The process of this number, as it is called now. One that cannot be looked at, in another
    /// container perhaps, is a task of its own that users wait for.
    pub(super) fn of(device: &dyn Device, pid: u32) -> Opener {
        let title = title(device, pid).unwrap_or_default();
        Opener::called(&title, pid)
    }

    fn called(title: &str, pid: u32) -> Opener {
        let own = Opener {
            task: TaskId(pid),
            class: Class::Foreground,
        };
        let Some(rest) = title.strip_prefix("postgres: ") else {
            return own;
        };
        // A cluster with a name has it here, before another colon.
        let after_name = rest
            .match_indices(": ")
            .filter_map(|(at, colon)| rest.get(at + colon.len()..));
        for says in std::iter::once(rest).chain(after_name) {
            if let Some(leader) = says.strip_prefix(WORKER) {
                let digits = leader.split(|c: char| !c.is_ascii_digit()).next();
                let leader = digits.and_then(|digits| digits.parse().ok());
                return Opener {
                    task: TaskId(leader.unwrap_or(pid)),
                    ..own
                };
            }
            if BY_ITSELF.iter().any(|name| says.starts_with(name)) {
                return Opener {
                    class: Class::Background,
                    ..own
                };
            }
        }
        own
    }
}

fn title(device: &dyn Device, pid: u32) -> Option<String> {
    let path = format!("/proc/{pid}/cmdline");
    let file = device.open(Path::new(&path), OpenMode::Read).ok()?;
    let mut bytes = vec![0; TITLE_MAX];
    let len = file.read_at(&mut bytes, 0).ok()?;
    bytes.truncate(len);
    let text = String::from_utf8_lossy(&bytes);
    Some(text.trim_end_matches(['\0', ' ']).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_title_says_whose_work_it_is() {
        let called = |title| {
            let opener = Opener::called(title, 7);
            (opener.task.0, opener.class)
        };
        for title in [
            "postgres: alice bank [local] SELECT",
            "postgres: 15/main: alice bank ::1(50324) idle in transaction",
            "postgres: startup recovering 000000010000000000000003",
            "postgres: walwriter",
            "postgres: 15/main: io worker 0",
            "/usr/lib/postgresql/15/bin/postgres -D checkpointer",
            "",
        ] {
            assert_eq!(called(title), (7, Class::Foreground), "{title}");
        }
        for title in [
            "postgres: checkpointer",
            "postgres: 15/main: checkpointer performing shutdown checkpoint",
            "postgres: 15/main: autovacuum worker bank",
            "postgres: a: b: background writer",
        ] {
            assert_eq!(called(title), (7, Class::Background), "{title}");
        }
        assert_eq!(
            called("postgres: parallel worker for PID 4711"),
            (4711, Class::Foreground)
        );
        assert_eq!(
            called("postgres: 15/main: parallel worker for PID 12 "),
            (12, Class::Foreground)
        );
    }

    #[test]
    fn a_process_that_is_not_there_is_a_task_of_its_own() {
        let opener = Opener::of(&collie_io::RealDevice::new(), u32::MAX);
        assert_eq!((opener.task.0, opener.class), (u32::MAX, Class::Foreground));
    }
}
