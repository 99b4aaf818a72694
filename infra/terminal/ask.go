package terminal

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
)

// errUnattended is of a question where nobody can be asked.
var errUnattended = errors.New("nobody answers here, as standard input is no terminal or has ended")

// ask puts a question and gives the answer. The end of ctx ends it.
func (s *Session) ask(ctx context.Context, question string) (string, error) {
	if !s.Attended {
		return "", errUnattended
	}
	fmt.Fprint(s.Err, question)
	type answer struct {
		text string
		err  error
	}
	answers := make(chan answer, 1)
	go func() { // it may wait for input that never comes: the program ends before it
		text, err := bufio.NewReader(s.In).ReadString('\n')
		answers <- answer{text, err}
	}()
	select {
	case <-ctx.Done():
		fmt.Fprintln(s.Err)
		return "", interrupted(ctx)
	case a := <-answers:
		text := strings.TrimSpace(a.text)
		switch {
		case errors.Is(a.err, io.EOF) && text == "":
			fmt.Fprintln(s.Err)
			return "", errUnattended
		case a.err != nil && !errors.Is(a.err, io.EOF):
			fmt.Fprintln(s.Err)
			return "", fmt.Errorf("read an answer: %w", a.err)
		}
		return text, nil
	}
}
