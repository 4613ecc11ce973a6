//! Files with settings, and with passwords.

use std::path::Path;

use anyhow::{Context, anyhow, bail, ensure};
use collie_io::{Device, OpenMode, RealDevice};
use serde::de::DeserializeOwned;

/// The longest configuration file that is read, in bytes.
const CONFIG_FILE_MAX: usize = 1 << 20;
/// The longest password file that is read, in bytes.
const PASSWORD_FILE_MAX: usize = 4096;
/// The permission bit that lets every user read.
const WORLD_READABLE: u32 = 0o004;

/// Settings from a file. Warns where it has a password, as `has_password` says, and every user can read it.
pub(super) fn read_settings<S: DeserializeOwned>(
    path: &Path,
    has_password: impl Fn(&S) -> bool,
    warnings: &mut Vec<String>,
) -> anyhow::Result<S> {
    let (text, mode) = read_text(path, CONFIG_FILE_MAX)
        .with_context(|| format!("cannot read the configuration from {}", path.display()))?;
    let settings = parse(&text).map_err(|problem| anyhow!("{}, {problem}", path.display()))?;
    if has_password(&settings) && mode & WORLD_READABLE != 0 {
        warnings.push(format!(
            "{} contains a password and every user can read it (mode {mode:04o}): chmod 0640 or stricter, or use \
             password-file",
            path.display()
        ));
    }
    Ok(settings)
}

/// Parses a configuration. The error names line, section and key, and shows only the wrong value.
pub(crate) fn parse<S: DeserializeOwned>(text: &str) -> Result<S, String> {
    toml::from_str(text).map_err(|error| {
        let message = error.message().trim_end();
        let Some(span) = error.span() else {
            return message.to_owned();
        };
        let before = text.get(..span.start).unwrap_or(text);
        let line = before.matches('\n').count() + 1;
        let key = |text: &str| -> String {
            let is_key = |c: &char| c.is_ascii_alphanumeric() || "-_".contains(*c);
            text.trim_start().chars().take_while(is_key).collect()
        };
        let section = before
            .lines()
            .rev()
            .find_map(|line| line.trim_start().strip_prefix('['))
            .map(key)
            .unwrap_or_default();
        let key = key(text.lines().nth(line - 1).unwrap_or_default());
        match (section.as_str(), key.as_str()) {
            ("", "") => format!("line {line}: {message}"),
            ("", name) | (name, "") => format!("line {line}, {name}: {message}"),
            (section, key) => format!("line {line}, {section}.{key}: {message}"),
        }
    })
}

/// The first line of a file that only its owner should be able to read.
pub(crate) fn read_password(path: &Path, warnings: &mut Vec<String>) -> anyhow::Result<String> {
    let (text, mode) = read_text(path, PASSWORD_FILE_MAX)
        .with_context(|| format!("cannot read the password from {}", path.display()))?;
    if mode & WORLD_READABLE != 0 {
        warnings.push(format!(
            "every user can read the password in {} (mode {mode:04o}): chmod 0600 or 0640",
            path.display()
        ));
    }
    match text.lines().next() {
        Some(line) if !line.is_empty() => Ok(line.to_owned()),
        _ => bail!(
            "{} begins with an empty line, not with a password",
            path.display()
        ),
    }
}

/// A file's text and its permission bits.
fn read_text(path: &Path, len_max: usize) -> anyhow::Result<(String, u32)> {
    let file = RealDevice::new().open(path, OpenMode::Read)?;
    let mut buffer = vec![0; len_max + 1];
    let mut len = 0;
    loop {
        match file.read_at(buffer.get_mut(len..).unwrap_or_default(), len as u64)? {
            0 => break,
            n => len += n,
        }
    }
    ensure!(len <= len_max, "it is longer than {len_max} bytes");
    buffer.truncate(len);
    let text = String::from_utf8(buffer).context("it is not UTF-8")?;
    Ok((text, file.stat()?.mode))
}

#[cfg(test)]
pub(crate) mod examples {
    use std::fmt::Debug;

    use serde::Serialize;

    use super::*;

    /// An example, with its commented-out defaults enabled.
    pub(crate) fn uncommented(example: &str) -> String {
        let shows_a_default = |line: &str| line.starts_with(|c: char| c.is_ascii_lowercase());
        example
            .lines()
            .map(|line| match line.strip_prefix('#') {
                Some(rest) if shows_a_default(rest) => format!("{rest}\n"),
                _ => format!("{line}\n"),
            })
            .collect()
    }

    /// The example has all defaults, and names every setting of every section, but for those of `others`.
    pub(crate) fn check<S: DeserializeOwned + Serialize + PartialEq + Debug>(
        example: &str,
        expected: &S,
        others: &[&str],
    ) {
        assert_eq!(parse::<S>(example).as_ref(), Ok(expected));
        assert_eq!(parse::<S>(&uncommented(example)).as_ref(), Ok(expected));
        let shown: toml::Table = toml::from_str(&uncommented(example)).unwrap();
        let known = toml::Table::try_from(expected).unwrap();
        for section in names_after::<S>("no-name = 1") {
            assert!(shown.contains_key(&section), "[{section}] is missing");
            let names = names_after::<S>(&format!("[{section}]\nno-name = 1"));
            assert!(names.len() > 3, "{names:?}");
            for name in names.iter().filter(|name| !others.contains(&name.as_str())) {
                // What has a default shows it; of the others there is an example.
                let is_named = match known[&section].get(name) {
                    Some(_) => shown[&section].get(name).is_some(),
                    None => example.contains(&format!("\n# {name} = ")),
                };
                assert!(is_named, "{section}.{name} is missing");
            }
        }
    }

    /// The names that are known where this text has one that is not.
    fn names_after<S: DeserializeOwned + Debug>(text: &str) -> Vec<String> {
        let error = parse::<S>(text).unwrap_err();
        let (_, known) = error.split_once("expected one of ").unwrap();
        known
            .split(", ")
            .map(|name| name.trim_matches('`').to_owned())
            .collect()
    }
}
