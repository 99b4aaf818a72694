package statefile

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// A cursor reads JSON from an offset of a file, with at most maxInstanceSize in memory.
type cursor struct {
	decoder *json.Decoder
	input   *boundedReader
	base    int64
}

var errTooLarge = errors.New("too large")

// A boundedReader returns errTooLarge at its limit.
type boundedReader struct {
	from  io.Reader
	read  int64
	until int64
}

func (b *boundedReader) Read(p []byte) (int, error) {
	if b.read >= b.until {
		return 0, errTooLarge
	}
	p = p[:min(int64(len(p)), b.until-b.read)]
	n, err := b.from.Read(p)
	b.read += int64(n)
	return n, err
}

func (s *fileReader) cursor(base int64) *cursor {
	input := &boundedReader{from: io.NewSectionReader(s.src, base, s.size-base)}
	return &cursor{decoder: json.NewDecoder(input), input: input, base: base}
}

// step moves the limit so that one more item can be read.
func (c *cursor) step() { c.input.until = c.decoder.InputOffset() + maxInstanceSize }

// offset returns the cursor's position in the file.
func (c *cursor) offset() int64 { return c.base + c.decoder.InputOffset() }

func (c *cursor) errorf(format string, args ...any) error {
	return fmt.Errorf("state file, byte %d: "+format, append([]any{c.offset()}, args...)...)
}

// failed converts a decoding error. The result does not quote any value.
func (c *cursor) decodeError(what string, err error) error {
	var syntax *json.SyntaxError
	var wrongType *json.UnmarshalTypeError
	switch {
	case errors.Is(err, errTooLarge):
		return c.errorf("%s is larger than %d MiB, which cannot be stored; remove it from the file", what, maxInstanceSize>>20)
	case errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF):
		return c.errorf("the file ends within %s; it is truncated: fetch it again with tofu state pull", what)
	case errors.As(err, &wrongType):
		return c.errorf("%s: %s has the wrong type (want %s); fetch the file again with tofu state pull", what, fieldOf(wrongType), wrongType.Type)
	case errors.As(err, &syntax):
		return c.errorf("%s is not JSON; fetch the file again with tofu state pull", what)
	}
	return c.errorf("reading %s: %w", what, err)
}

func fieldOf(err *json.UnmarshalTypeError) string {
	if err.Field == "" {
		return "the value"
	}
	return err.Field
}

func (c *cursor) token(what string) (json.Token, error) {
	c.step()
	token, err := c.decoder.Token()
	if err != nil {
		return nil, c.decodeError(what, err)
	}
	return token, nil
}

func (c *cursor) open(want json.Delim, what string) error {
	null, err := c.openOrNull(want, what)
	if null {
		return c.errorf("%s is null; fetch the file again with tofu state pull", what)
	}
	return err
}

func (c *cursor) openOrNull(want json.Delim, what string) (bool, error) {
	token, err := c.token(what)
	if err != nil || token == nil {
		return token == nil && err == nil, err
	}
	if token != want {
		return false, c.errorf("%s does not begin with %s; fetch the file again with tofu state pull", what, want)
	}
	return false, nil
}

func (c *cursor) more() bool {
	c.step()
	return c.decoder.More()
}

func (c *cursor) close() error {
	_, err := c.token("the file")
	return err
}

// name reads a field name.
func (c *cursor) name() (string, error) {
	token, err := c.token("a field")
	if err != nil {
		return "", err
	}
	name, ok := token.(string)
	if !ok {
		return "", c.errorf("a field has no name; fetch the file again with tofu state pull")
	}
	return name, nil
}

func (c *cursor) decode(into any, what string) error {
	c.step()
	if err := c.decoder.Decode(into); err != nil {
		return c.decodeError(what, err)
	}
	return nil
}

// skip skips a value of any size, token by token.
func (c *cursor) skip() error {
	for depth := 0; ; {
		token, err := c.token("a value")
		if err != nil {
			return err
		}
		switch token {
		case json.Delim('{'), json.Delim('['):
			depth++
		case json.Delim('}'), json.Delim(']'):
			depth--
		}
		if depth == 0 {
			return nil
		}
	}
}

// valueAfter returns a cursor at the value of the field whose name ends at the offset.
func (s *fileReader) valueAfter(offset int64) (*cursor, error) {
	for at := offset; ; at++ {
		var letter [1]byte
		if _, err := s.src.ReadAt(letter[:], at); err != nil {
			return nil, s.cursor(at).decodeError("a value", io.ErrUnexpectedEOF)
		}
		if letter[0] == ':' {
			return s.cursor(at + 1), nil
		}
	}
}
