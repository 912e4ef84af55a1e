//! Descriptors as words, for another process.

use tensor_channel::{Descriptor, MemoryHandle, Segments, Transport};

/// A descriptor as words.
pub fn write(descriptor: &Descriptor) -> String {
    let write = |segments: &Segments| {
        let Segments {
            inbound,
            outbound,
            generation,
        } = segments;
        format!("{inbound} {outbound} {generation}")
    };
    match descriptor {
        Descriptor::Shm(segments) => format!("shm {}", write(segments)),
        Descriptor::Device {
            transport,
            segments,
            memory,
        } => format!(
            "{transport} {} {} {} {}",
            write(segments),
            hex(&memory.device),
            memory.bytes,
            hex(&memory.handle)
        ),
        Descriptor::Tcp { address, secret } => format!("tcp {address} {}", hex(secret)),
    }
}

/// The words of a descriptor.
pub fn read(words: &[String]) -> Descriptor {
    let segments = |inbound: &String, outbound: &String, generation: &String| Segments {
        inbound: inbound.clone(),
        outbound: outbound.clone(),
        generation: generation.parse().expect("a number"),
    };
    match words {
        [_, inbound, outbound, generation] => {
            Descriptor::Shm(segments(inbound, outbound, generation))
        }
        [_, address, secret] => Descriptor::Tcp {
            address: address.clone(),
            secret: bytes(secret).try_into().expect("16 bytes"),
        },
        [kind, inbound, outbound, generation, device, size, handle] => {
            let all = [
                Transport::CudaIpc,
                Transport::HipIpc,
                Transport::EmulatedIpc,
            ];
            let named = |transport: &Transport| transport.to_string() == *kind;
            Descriptor::Device {
                transport: all.into_iter().find(named).expect("a transport"),
                segments: segments(inbound, outbound, generation),
                memory: MemoryHandle {
                    device: bytes(device).try_into().expect("16 bytes"),
                    bytes: size.parse().expect("a number"),
                    handle: bytes(handle),
                },
            }
        }
        other => panic!("{other:?} is no descriptor"),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn bytes(hex: &str) -> Vec<u8> {
    let digit = |digit: u8| char::from(digit).to_digit(16).expect("a hexadecimal digit") as u8;
    let (pairs, _) = hex.as_bytes().as_chunks();
    let byte = |&[high, low]: &[u8; 2]| digit(high) << 4 | digit(low);
    pairs.iter().map(byte).collect()
}
