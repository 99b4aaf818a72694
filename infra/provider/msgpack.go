package provider

import (
	"encoding/binary"
	"errors"
	"fmt"
)

const (
	// mostElements and deepest bound what a value takes in memory, which is fifty times its encoding.
	// An object of 1.5 MiB has far fewer.
	mostElements = 1 << 20
	deepest      = 256
	largestJSON  = 4 << 20
)

var (
	errShort    = errors.New("the value ends in the middle")
	errElements = fmt.Errorf("the value has more than %d elements", mostElements)
	errDeep     = fmt.Errorf("the value is nested deeper than %d", deepest)
)

// checkMsgpack finds out whether an encoded value is what it says: decoders make room for as many
// elements as an array announces, and recurse as deep as it goes. What follows the value does
// not matter to them: it is the rest. The format is that of https://github.com/msgpack/msgpack/blob/master/spec.md.
func checkMsgpack(b []byte) (rest []byte, err error) {
	var open [deepest]uint64 // how many elements are still to come, by depth
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
		if elements++; elements > mostElements {
			return nil, errElements
		}
		size, children, err := msgpackHead(b)
		if err != nil {
			return nil, err
		}
		if size > uint64(len(b)) || children > uint64(len(b))-size {
			return nil, errShort // each element has a byte at least
		}
		b = b[size:]
		if children > 0 {
			if depth++; depth == deepest {
				return nil, errDeep
			}
			open[depth] = children
		}
	}
}

// msgpackHead tells how many bytes the next element takes, without its children, and
// how many of those it has.
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

// msgpackLayout tells what follows a code: the bytes of a length, the bytes of data
// beside those that the length counts, and how many children go with each one that it counts.
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
	return 0, 0, 0 // nil, false, true, and 0xc1, which nothing means
}
