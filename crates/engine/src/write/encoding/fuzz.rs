//! Mutated payloads of commits.

use collie_sim::fuzz::{corpus, mutations};

use crate::write::encoding::*;

/// A number as the format draws it, of any size.
fn number(bytes: &mut &[u8]) -> Option<u128> {
    let mut value = 0_u128;
    for shift in (0..70).step_by(7) {
        let (first, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u128::from(first & 0x7f) << shift;
        if first & 0x80 == 0 {
            return (value <= u128::from(u64::MAX)).then_some(value);
        }
    }
    None
}

fn string<'a>(bytes: &mut &'a [u8]) -> Option<&'a [u8]> {
    let len = usize::try_from(number(bytes)?).ok()?;
    let (string, rest) = bytes.split_at_checked(len)?;
    *bytes = rest;
    Some(string)
}

/// Reads a payload another way; `None` where it is malformed.
fn reference(mut bytes: &[u8]) -> Option<Vec<Op<'_>>> {
    let mut ops = Vec::new();
    while let Some((tag, rest)) = bytes.split_first() {
        bytes = rest;
        let family = u32::try_from(number(&mut bytes)?).ok()?;
        let key = string(&mut bytes).filter(|key| (1..=65_535).contains(&key.len()))?;
        let write = match tag {
            1 => Write::Put(string(&mut bytes)?),
            2 => Write::Delete,
            _ => return None,
        };
        ops.push(Op { family, key, write });
    }
    Some(ops)
}

#[test]
fn a_mutated_payload_is_read_as_it_is_drawn_or_refused() {
    mutations("payloads", &corpus("payloads"), 20_000, |_, payload| {
        let read: Result<Vec<_>, _> = Ops::new(payload).collect();
        match read {
            Ok(ops) => {
                assert_eq!(Some(&ops), reference(payload).as_ref());
                let mut again = Vec::new();
                ops.iter().for_each(|op| encode(&mut again, *op));
                assert!(again.len() <= payload.len());
            }
            Err(malformed) => {
                assert!(reference(payload).is_none(), "{malformed:?}");
                assert!(malformed.offset <= payload.len(), "{malformed:?}");
            }
        }
    });
}
