package adopt

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// A cursor reads JSON from some place of a file on, and takes no more than largestInstance into memory at a time.
type cursor struct {
	decoder *json.Decoder
	input   *bounded
	base    int64
}

var errTooLarge = errors.New("too large")

// bounded is a reader that ends with errTooLarge.
type bounded struct {
	from  io.Reader
	read  int64
	until int64
}

func (b *bounded) Read(p []byte) (int, error) {
	if b.read >= b.until {
		return 0, errTooLarge
	}
	p = p[:min(int64(len(p)), b.until-b.read)]
	n, err := b.from.Read(p)
	b.read += int64(n)
	return n, err
}

func (s *fileReader) cursor(base int64) *cursor {
	input := &bounded{from: io.NewSectionReader(s.src, base, s.size-base)}
	return &cursor{decoder: json.NewDecoder(input), input: input, base: base}
}

// step allows for one more piece to be read.
func (c *cursor) step() { c.input.until = c.decoder.InputOffset() + largestInstance }

// offset is where in the file the cursor is.
func (c *cursor) offset() int64 { return c.base + c.decoder.InputOffset() }

func (c *cursor) wrong(format string, args ...any) error {
	return fmt.Errorf("state file, byte %d: "+format, append([]any{c.offset()}, args...)...)
}

// failed says what the decoder found, in words that quote nothing of a value.
func (c *cursor) failed(what string, err error) error {
	var syntax *json.SyntaxError
	var kind *json.UnmarshalTypeError
	switch {
	case errors.Is(err, errTooLarge):
		return c.wrong("%s takes more than %d MiB: no store would keep it; leave it out of the file", what, largestInstance>>20)
	case errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF):
		return c.wrong("the file ends within %s: it was cut off; fetch it again with tofu state pull", what)
	case errors.As(err, &kind):
		return c.wrong("%s: %s is not what it should be (%s): fetch the file again with tofu state pull", what, fieldOf(kind), kind.Type)
	case errors.As(err, &syntax):
		return c.wrong("%s is not JSON: fetch the file again with tofu state pull", what)
	}
	return c.wrong("%s cannot be read: %w", what, err)
}

func fieldOf(err *json.UnmarshalTypeError) string {
	if err.Field == "" {
		return "it"
	}
	return err.Field
}

func (c *cursor) token(what string) (json.Token, error) {
	c.step()
	token, err := c.decoder.Token()
	if err != nil {
		return nil, c.failed(what, err)
	}
	return token, nil
}

func (c *cursor) open(want json.Delim, what string) error {
	null, err := c.openOrNull(want, what)
	if null {
		return c.wrong("%s is null: fetch the file again with tofu state pull", what)
	}
	return err
}

func (c *cursor) openOrNull(want json.Delim, what string) (bool, error) {
	token, err := c.token(what)
	if err != nil || token == nil {
		return token == nil && err == nil, err
	}
	if token != want {
		return false, c.wrong("%s does not begin with %s: fetch the file again with tofu state pull", what, want)
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

// name reads the name of a field.
func (c *cursor) name() (string, error) {
	token, err := c.token("a field")
	if err != nil {
		return "", err
	}
	name, ok := token.(string)
	if !ok {
		return "", c.wrong("a field has no name: fetch the file again with tofu state pull")
	}
	return name, nil
}

func (c *cursor) decode(into any, what string) error {
	c.step()
	if err := c.decoder.Decode(into); err != nil {
		return c.failed(what, err)
	}
	return nil
}

// skip goes over a value of any size, piece by piece.
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

// valueAfter gives a cursor at the value of the field whose name ends at the offset.
func (s *fileReader) valueAfter(offset int64) (*cursor, error) {
	for at := offset; ; at++ {
		var letter [1]byte
		if _, err := s.src.ReadAt(letter[:], at); err != nil {
			return nil, s.cursor(at).failed("a value", io.ErrUnexpectedEOF)
		}
		if letter[0] == ':' {
			return s.cursor(at + 1), nil
		}
	}
}
