//! A channel's sizes in bytes, checked once.

use crate::channel::ChannelSpec;
use crate::error::ChannelError;

/// Sizes of a [`ChannelSpec`] that is known to be possible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Geometry {
    spec: ChannelSpec,
    row_bytes: usize,
    slot_bytes: usize,
    payloads_at: PayloadsAt,
}

/// Where the payloads of the slots lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PayloadsAt {
    /// Beside the slots' words.
    Segment,
    /// In memory of a device.
    Device,
}

/// Slots in device memory begin at multiples of this, as allocations do.
const DEVICE_ALIGN: usize = 256;

impl Geometry {
    /// # Errors
    /// A size is 0, or the channel does not fit an address space.
    pub(crate) fn new(spec: ChannelSpec) -> Result<Self, ChannelError> {
        for (field, size) in [
            ("row_len", spec.row_len),
            ("slot_rows", spec.slot_rows),
            ("slots", spec.slots),
        ] {
            if size == 0 {
                return Err(invalid(field, "0", "at least 1"));
            }
        }
        let sizes = || {
            let row_bytes = spec.row_len.checked_mul(spec.element.bytes())?;
            let slot_bytes = row_bytes.checked_mul(spec.slot_rows)?;
            let all = slot_bytes.checked_add(4096)?.checked_mul(spec.slots)?;
            (isize::try_from(all).is_ok_and(|all| all < isize::MAX / 2))
                .then_some((row_bytes, slot_bytes))
        };
        let (row_bytes, slot_bytes) = sizes().ok_or_else(|| {
            let got = format!("{} x {} x {}", spec.slots, spec.slot_rows, spec.row_len);
            invalid("slots x slot_rows x row_len", &got, "what fits into memory")
        })?;
        Ok(Self {
            spec,
            row_bytes,
            slot_bytes,
            payloads_at: PayloadsAt::Segment,
        })
    }

    /// The same with payloads in memory of a device.
    pub(crate) fn on_device(self) -> Self {
        Self {
            payloads_at: PayloadsAt::Device,
            ..self
        }
    }

    pub(crate) const fn payloads_at(&self) -> PayloadsAt {
        self.payloads_at
    }

    /// Bytes from one slot to the next in device memory.
    pub(crate) const fn device_stride(&self) -> usize {
        self.slot_bytes.next_multiple_of(DEVICE_ALIGN)
    }

    /// Bytes of device memory that the slots take.
    pub(crate) const fn device_bytes(&self) -> usize {
        self.spec.slots * self.device_stride()
    }

    pub(crate) const fn spec(&self) -> ChannelSpec {
        self.spec
    }

    /// Bytes of a slot's payload.
    pub(crate) const fn slot_bytes(&self) -> usize {
        self.slot_bytes
    }

    /// Whether a payload of so many bytes is whole rows, and not more than a slot has.
    pub(crate) const fn fits(&self, bytes: usize) -> bool {
        bytes <= self.slot_bytes && bytes.is_multiple_of(self.row_bytes)
    }

    /// # Errors
    /// The payload to send does not fit.
    pub(crate) fn check_payload(&self, bytes: usize) -> Result<(), ChannelError> {
        if self.fits(bytes) {
            return Ok(());
        }
        Err(ChannelError::Payload {
            got: bytes,
            expected: self.payloads(),
        })
    }

    /// # Errors
    /// A caller's memory has no room for a slot.
    pub(crate) fn check_room(&self, bytes: usize) -> Result<(), ChannelError> {
        if bytes >= self.slot_bytes {
            return Ok(());
        }
        Err(ChannelError::Payload {
            got: bytes,
            expected: format!("room for a slot of {} bytes", self.slot_bytes),
        })
    }

    /// Copied from what a peer wrote: the bytes of a payload, where they are possible.
    ///
    /// # Errors
    /// They are not.
    pub(crate) fn check_written(&self, got: u64) -> Result<usize, ChannelError> {
        usize::try_from(got)
            .ok()
            .filter(|&bytes| self.fits(bytes))
            .ok_or_else(|| ChannelError::Damaged {
                field: "payload bytes",
                got,
                expected: self.payloads(),
            })
    }

    fn payloads(&self) -> String {
        format!(
            "up to {} rows of {} bytes",
            self.spec.slot_rows, self.row_bytes
        )
    }
}

fn invalid(field: &'static str, got: &str, expected: &str) -> ChannelError {
    ChannelError::Invalid {
        field,
        got: got.to_owned(),
        expected: expected.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::channel::ElementType;

    fn geometry(row_len: usize, slot_rows: usize, slots: usize) -> Result<Geometry, ChannelError> {
        Geometry::new(ChannelSpec {
            element: ElementType::F32,
            row_len,
            slot_rows,
            slots,
        })
    }

    #[test]
    fn whole_rows_up_to_a_slot_fit() {
        let geometry = geometry(3, 2, 1).unwrap();
        let fitting: Vec<usize> = (0..40).filter(|&bytes| geometry.fits(bytes)).collect();
        assert_eq!(fitting, [0, 12, 24]);
        assert!(geometry.check_written(u64::MAX).is_err());
    }

    #[test]
    fn sizes_that_no_memory_has_are_refused() {
        let most = usize::MAX;
        let rows = [
            (0, 1, 1),
            (1, 0, 1),
            (1, 1, 0),
            (most, 1, 1),
            (1, most, 1),
            (1, 1, most),
            (most / 8, 1, 1),
            (1 << 20, 1 << 20, 1 << 20),
        ];
        for (row_len, slot_rows, slots) in rows {
            let result = geometry(row_len, slot_rows, slots);
            assert!(
                matches!(result, Err(ChannelError::Invalid { .. })),
                "{row_len} x {slot_rows} x {slots}: {result:?}"
            );
        }
    }
}
