package plugin

import (
	"encoding/binary"
	"errors"
	"fmt"
)

const (
	// maxElements and maxDepth bound the memory of a decoded value, which is fifty times its
	// encoding. An object of 1.5 MiB has far fewer.
	maxElements = 1 << 20
	maxDepth    = 256
	maxJSON     = 4 << 20
)

var (
	errShort    = errors.New("the value is truncated")
	errElements = fmt.Errorf("the value has more than %d elements", maxElements)
	errDeep     = fmt.Errorf("the value is nested deeper than %d levels", maxDepth)
)

// checkMsgpack verifies an encoded value before it is decoded, because decoders allocate as many
// elements as an array announces and recurse as deep as the value goes. Bytes after the value are
// returned as rest; decoders ignore them. Format:
// https://github.com/msgpack/msgpack/blob/master/spec.md.
func checkMsgpack(b []byte) (rest []byte, err error) {
	var open [maxDepth]uint64 // remaining elements at each depth
	depth, elements := 0, 0
	open[0] = 1
	for {
		for open[depth] == 0 {
			if depth == 0 {
				return b, nil
			}
			depth--
		}
		open[depth]--
		if elements++; elements > maxElements {
			return nil, errElements
		}
		size, children, err := msgpackHead(b)
		if err != nil {
			return nil, err
		}
		if size > uint64(len(b)) || children > uint64(len(b))-size {
			return nil, errShort // each element has at least one byte
		}
		b = b[size:]
		if children > 0 {
			if depth++; depth == maxDepth {
				return nil, errDeep
			}
			open[depth] = children
		}
	}
}

// msgpackHead returns the size of the next element without its children, and the number of its
// children.
func msgpackHead(b []byte) (size, children uint64, err error) {
	if len(b) == 0 {
		return 0, 0, errShort
	}
	switch c := b[0]; {
	case c <= 0x7f || c >= 0xe0: // small integers
		return 1, 0, nil
	case c <= 0x8f:
		return 1, 2 * uint64(c&0x0f), nil // a small map
	case c <= 0x9f:
		return 1, uint64(c & 0x0f), nil // a small array
	case c <= 0xbf:
		return 1 + uint64(c&0x1f), 0, nil // a short string
	}
	width, data, times := msgpackLayout(b[0])
	if len(b) < 1+width {
		return 0, 0, errShort
	}
	length := uint64(0)
	switch width {
	case 1:
		length = uint64(b[1])
	case 2:
		length = uint64(binary.BigEndian.Uint16(b[1:]))
	case 4:
		length = uint64(binary.BigEndian.Uint32(b[1:]))
	}
	if times > 0 {
		return uint64(1 + width), times * length, nil
	}
	return uint64(1+width) + data + length, 0, nil
}

// msgpackLayout describes what follows a type code: the width of the length field, the bytes of
// data in addition to that length, and the number of children per unit of length.
func msgpackLayout(c byte) (width int, data, children uint64) {
	switch c {
	case 0xc4, 0xd9: // bytes and strings
		return 1, 0, 0
	case 0xc5, 0xda:
		return 2, 0, 0
	case 0xc6, 0xdb:
		return 4, 0, 0
	case 0xc7: // extensions, with a type
		return 1, 1, 0
	case 0xc8:
		return 2, 1, 0
	case 0xc9:
		return 4, 1, 0
	case 0xcc, 0xd0: // numbers
		return 0, 1, 0
	case 0xcd, 0xd1:
		return 0, 2, 0
	case 0xca, 0xce, 0xd2:
		return 0, 4, 0
	case 0xcb, 0xcf, 0xd3:
		return 0, 8, 0
	case 0xd4, 0xd5, 0xd6, 0xd7, 0xd8: // extensions of 1 to 16 bytes, with a type
		return 0, 1 + 1<<(c-0xd4), 0
	case 0xdc: // arrays
		return 2, 0, 1
	case 0xdd:
		return 4, 0, 1
	case 0xde: // maps
		return 2, 0, 2
	case 0xdf:
		return 4, 0, 2
	}
	return 0, 0, 0 // nil, false, true, and the unused 0xc1
}
