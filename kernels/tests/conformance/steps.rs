//! Steps that a device may record.

use kernels::{Segment, Step, Visibility};

use crate::data::devices;

/// What cannot be recorded is done all the same, each time, and is no fault of the device.
#[test]
fn a_step_that_cannot_be_recorded_is_done_piece_by_piece() {
    for device in devices() {
        let mut buffer = device.zeros(4).unwrap();
        let segment = Segment {
            first_row: 0,
            parents: &[-1],
            committed_len: 0,
            first_position: 0,
            pages: &[0],
            state_index: 0,
            advance: true,
        };
        let step = Step {
            tokens: &[1],
            segments: &[segment],
            visibility: Visibility::Ancestors,
            variant: &"reads",
        };
        for round in 0..4_u8 {
            let value = f32::from(round) + 1.0;
            let mut seen = [0.0; 4];
            device.step(&step, &mut || {
                device.write(&mut buffer, 0, &[value; 4]);
                device.read(&buffer, 0, &mut seen);
            });
            device.finish().unwrap();
            assert_eq!(seen, [value; 4], "{}", device.name());
        }
    }
}
