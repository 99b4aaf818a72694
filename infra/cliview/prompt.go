package cliview

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
)

// errNotInteractive is returned if the user cannot be prompted.
var errNotInteractive = errors.New("standard input is not a terminal or has ended")

// prompt prints a question and returns the answer. It returns when ctx ends.
func (s *Session) prompt(ctx context.Context, question string) (string, error) {
	if !s.Interactive {
		return "", errNotInteractive
	}
	fmt.Fprint(s.Err, question)
	type answer struct {
		text string
		err  error
	}
	answers := make(chan answer, 1)
	go func() { // may block on input that never comes; it ends with the program
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
			return "", errNotInteractive
		case a.err != nil && !errors.Is(a.err, io.EOF):
			fmt.Fprintln(s.Err)
			return "", fmt.Errorf("read an answer: %w", a.err)
		}
		return text, nil
	}
}
