package postgres

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/atoll-dev/atoll/kv"
)

// Parameters and columns are in the protocol's binary format: integers big-endian, bytes
// unchanged, arrays with one dimension.

func int4(v int32) []byte { return binary.BigEndian.AppendUint32(nil, uint32(v)) }
func int8(v int64) []byte { return binary.BigEndian.AppendUint64(nil, uint64(v)) }

// blob is a bytea parameter: nil would be NULL.
func blob(b []byte) []byte {
	if b == nil {
		return []byte{}
	}
	return b
}

func arrayHeader(n int, elem uint32, size int) []byte {
	b := make([]byte, 0, 20+size)
	if n == 0 {
		b = binary.BigEndian.AppendUint32(b, 0) // dimensions
		b = binary.BigEndian.AppendUint32(b, 0) // no NULLs
		return binary.BigEndian.AppendUint32(b, elem)
	}
	b = binary.BigEndian.AppendUint32(b, 1)
	b = binary.BigEndian.AppendUint32(b, 0)
	b = binary.BigEndian.AppendUint32(b, elem)
	b = binary.BigEndian.AppendUint32(b, uint32(n))
	return binary.BigEndian.AppendUint32(b, 1) // first index
}

// int8s encodes f(0) to f(n-1).
func int8s(n int, f func(i int) int64) []byte {
	b := arrayHeader(n, oidInt8, 12*n)
	for i := range n {
		b = binary.BigEndian.AppendUint32(b, 8)
		b = binary.BigEndian.AppendUint64(b, uint64(f(i)))
	}
	return b
}

func int4s(n int, f func(i int) int32) []byte {
	b := arrayHeader(n, oidInt4, 8*n)
	for i := range n {
		b = binary.BigEndian.AppendUint32(b, 4)
		b = binary.BigEndian.AppendUint32(b, uint32(f(i)))
	}
	return b
}

func bools(n int, f func(i int) bool) []byte {
	b := arrayHeader(n, oidBool, 5*n)
	for i := range n {
		b = binary.BigEndian.AppendUint32(b, 1)
		if f(i) {
			b = append(b, 1)
		} else {
			b = append(b, 0)
		}
	}
	return b
}

func blobs(n int, f func(i int) []byte) []byte {
	size := 4 * n
	for i := range n {
		size += len(f(i))
	}
	b := arrayHeader(n, oidBytes, size)
	for i := range n {
		e := f(i)
		b = binary.BigEndian.AppendUint32(b, uint32(len(e)))
		b = append(b, e...)
	}
	return b
}

// columns decodes the columns of one row, in order. It records the first error, so that the
// decoder need not check each column.
type columns struct {
	cols [][]byte
	err  error
}

func (c *columns) next() []byte {
	if len(c.cols) == 0 {
		c.fail("a row has too few columns")
		return nil
	}
	col := c.cols[0]
	c.cols = c.cols[1:]
	return col
}

func (c *columns) fail(what string) {
	if c.err == nil {
		c.err = fmt.Errorf("database: %w: %s; check that the schema is Atoll's", kv.ErrUnavailable, what)
	}
}

// int reads an integer, 0 for NULL.
func (c *columns) int() int64 {
	switch b := c.next(); len(b) {
	case 0:
		return 0
	case 4:
		return int64(int32(binary.BigEndian.Uint32(b)))
	case 8:
		return int64(binary.BigEndian.Uint64(b))
	default:
		c.fail("a number has an invalid size")
		return 0
	}
}

func (c *columns) int32() int32 {
	v := c.int()
	if v < math.MinInt32 || v > math.MaxInt32 {
		c.fail("a number is too large")
	}
	return int32(v)
}

// bytes copies a column, nil for NULL and for an empty one.
func (c *columns) bytes() []byte {
	b := c.next()
	if len(b) == 0 {
		return nil
	}
	return append(make([]byte, 0, len(b)), b...)
}

// skip skips n columns.
func (c *columns) skip(n int) {
	for range n {
		c.next()
	}
}

// keyAndValue copies two columns into one allocation.
func (c *columns) keyAndValue() (key, value []byte) {
	k, v := c.next(), c.next()
	buf := make([]byte, len(k)+len(v))
	copy(buf, k)
	copy(buf[len(k):], v)
	if len(v) > 0 {
		value = buf[len(k):]
	}
	return buf[:len(k):len(k)], value
}
