//! Text for a person at a terminal: as wide as the terminal, and in colours where it has them.
//!
//! Colours are as in `docs/results/tour.svg`. There are none where standard output is no terminal, where the
//! terminal says that it is dumb, and where `NO_COLOR` is set (no-color.org).

use std::io::{self, IsTerminal};

use collie_cli::output::Results;

/// The width where standard output is no terminal.
const WIDTH: usize = 84;
/// Longer lines are hard to read, shorter ones useless.
const WIDEST: usize = 100;
const NARROWEST: usize = 40;
/// What the lines of a part begin with.
const INDENT: &str = "    ";

/// How a piece of text looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Style {
    Title,
    Good,
    Bad,
    Ours,
    Theirs,
}

impl Style {
    fn code(self) -> &'static str {
        match self {
            Self::Title => "\x1b[1;94m",
            Self::Good => "\x1b[1;32m",
            Self::Bad => "\x1b[1;31m",
            Self::Ours => "\x1b[32m",
            Self::Theirs => "\x1b[90m",
        }
    }
}

/// Standard output, or what stands for it in a test.
pub(crate) struct Page {
    width: usize,
    has_colours: bool,
}

impl Page {
    /// The terminal that standard output is, or plain text.
    pub(crate) fn new() -> Self {
        let out = io::stdout();
        let set = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        let is_dumb = set("TERM").is_none_or(|term| term == "dumb");
        let columns = rustix::termios::tcgetwinsize(&out).map_or(0, |size| usize::from(size.ws_col));
        Self {
            width: match columns {
                0 => WIDTH,
                columns => columns.clamp(NARROWEST, WIDEST),
            },
            has_colours: out.is_terminal() && !is_dumb && set("NO_COLOR").is_none(),
        }
    }

    /// `text` in a style, if there are colours.
    pub(crate) fn styled(&self, style: Style, text: &str) -> String {
        match self.has_colours {
            true => format!("{}{text}\x1b[0m", style.code()),
            false => text.to_owned(),
        }
    }

    /// So many columns are left behind the first `used` of a line.
    pub(crate) fn room(&self, used: usize) -> usize {
        self.width.saturating_sub(used)
    }

    /// The head of a part: its number and title, and what it is about.
    pub(crate) fn part(&self, results: &mut Results, title: &str, text: &str) -> io::Result<()> {
        let lines = self.wrapped("", &format!("{title} {text}"));
        results.line("")?;
        for (place, line) in lines.iter().enumerate() {
            match line.strip_prefix(title).filter(|_| place == 0) {
                Some(rest) => results.line(format_args!("{}{rest}", self.styled(Style::Title, title)))?,
                None => results.line(line)?,
            }
        }
        results.line("")?;
        results.flush()
    }

    /// A paragraph at the margin.
    pub(crate) fn plain(&self, results: &mut Results, text: &str) -> io::Result<()> {
        for line in self.wrapped_with("", "", text) {
            results.line(line)?;
        }
        results.flush()
    }

    /// A paragraph of a part.
    pub(crate) fn say(&self, results: &mut Results, text: &str) -> io::Result<()> {
        for line in self.wrapped(INDENT, text) {
            results.line(self.with_losses(&line))?;
        }
        results.flush()
    }

    fn wrapped(&self, first: &str, text: &str) -> Vec<String> {
        self.wrapped_with(first, INDENT, text)
    }

    /// The text's words in lines of the page's width; a word that is longer has a line of its own.
    fn wrapped_with(&self, first: &str, rest: &str, text: &str) -> Vec<String> {
        let mut lines = vec![first.to_owned()];
        let mut is_empty = true;
        for word in text.split_whitespace() {
            let line = lines.last().map_or(0, |line| line.chars().count());
            if !is_empty && line + 1 + word.chars().count() > self.width {
                lines.push(rest.to_owned());
                is_empty = true;
            }
            if let Some(line) = lines.last_mut() {
                if !is_empty {
                    line.push(' ');
                }
                line.push_str(word);
            }
            is_empty = false;
        }
        lines
    }

    /// The line, with the number that was lost in a colour that says whether that is good.
    fn with_losses(&self, line: &str) -> String {
        let Some((before, after)) = line.split_once("lost ") else {
            return line.to_owned();
        };
        let end = after
            .find(|c: char| !(c.is_ascii_digit() || c == ','))
            .unwrap_or(after.len());
        let (number, after) = after.split_at(end);
        let style = if number == "0" { Style::Good } else { Style::Bad };
        format!("{before}{}{after}", self.styled(style, &format!("lost {number}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_as_wide_as_the_page_and_no_word_is_lost() {
        let text = "one two three four five six seven eight nine ten eleven twelve";
        for width in NARROWEST..=WIDEST {
            let page = Page {
                width,
                has_colours: false,
            };
            let lines = page.wrapped("", text);
            assert!(
                lines.iter().all(|line| line.chars().count() <= width),
                "{lines:?}"
            );
            assert!(
                lines.iter().skip(1).all(|line| line.starts_with(INDENT)),
                "{lines:?}"
            );
            let words: Vec<&str> = lines.iter().flat_map(|line| line.split_whitespace()).collect();
            assert_eq!(words.join(" "), text);
        }
        let page = Page {
            width: 10,
            has_colours: false,
        };
        let lines = page.wrapped("", "a /a/very/long/path b");
        assert_eq!(lines, ["a", "    /a/very/long/path", "    b"]);
    }

    #[test]
    fn a_loss_stands_out_and_so_does_none() {
        let page = |has_colours| Page {
            width: 80,
            has_colours,
        };
        let line = "acknowledged 10 · lost 0 (seed 7)";
        assert_eq!(page(false).with_losses(line), line);
        assert_eq!(
            page(true).with_losses(line),
            "acknowledged 10 · \x1b[1;32mlost 0\x1b[0m (seed 7)"
        );
        let lost = page(true).with_losses("recovered 9 · lost 1,000");
        assert_eq!(lost, "recovered 9 · \x1b[1;31mlost 1,000\x1b[0m");
    }
}
