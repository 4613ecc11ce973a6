//! The password, compared in constant time.

use std::fmt;

use subtle::{Choice, ConstantTimeEq};

/// Longest password, in bytes. A longer guess is wrong at once; its length is no secret.
pub const PASSWORD_LEN_MAX: usize = 512;

/// A password in a buffer of fixed length, so that a comparison always reads as many bytes.
pub(crate) struct Password {
    padded: Box<[u8; PASSWORD_LEN_MAX]>,
    len: usize,
}

impl Password {
    /// Stores `text`, cut to [`PASSWORD_LEN_MAX`] bytes.
    pub(crate) fn new(text: &[u8]) -> Password {
        let mut padded = Box::new([0; PASSWORD_LEN_MAX]);
        let len = text.len().min(PASSWORD_LEN_MAX);
        for (to, from) in padded.iter_mut().zip(text) {
            *to = *from;
        }
        Password { padded, len }
    }

    /// Whether `guess` is the password. Takes as long for any guess of up to [`PASSWORD_LEN_MAX`]
    /// bytes.
    pub(crate) fn is(&self, guess: &[u8]) -> bool {
        if guess.len() > PASSWORD_LEN_MAX {
            return false;
        }
        let guess = Password::new(guess);
        let same: Choice = self.padded.ct_eq(&*guess.padded) & (self.len as u64).ct_eq(&(guess.len as u64));
        same.into()
    }

    /// The password itself, for `CONFIG GET requirepass`.
    pub(crate) fn text(&self) -> &[u8] {
        self.padded.get(..self.len).unwrap_or_default()
    }
}

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Password(hidden)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_very_password_is_accepted() {
        let password = Password::new(b"secret");
        assert!(password.is(b"secret"));
        let long = [b'x'; PASSWORD_LEN_MAX + 1];
        for wrong in [&b""[..], b"secre", b"secret\0", b"Secret", &long] {
            assert!(!password.is(wrong), "{wrong:?}");
        }
        let longest = Password::new(&long[..PASSWORD_LEN_MAX]);
        assert!(longest.is(&long[..PASSWORD_LEN_MAX]));
        assert!(!longest.is(&long));
        assert_eq!(format!("{password:?}"), "Password(hidden)");
    }
}
