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

// errDeclined is returned if the user does not confirm.
var errDeclined = errors.New("not confirmed")

// Ask prompts a question and returns an error unless the answer is yes. doing is the action, for errors, and remedy is
// what to do where no one can answer. Of the Session, it needs only In, Interactive and Err.
func (s *Session) Ask(ctx context.Context, question, doing, remedy string) error {
	answer, err := s.prompt(ctx, question+" Only \"yes\" will be accepted: ")
	switch {
	case errors.Is(err, errNotInteractive):
		return fmt.Errorf("%s: %w: %s", doing, err, remedy)
	case err != nil:
		return fmt.Errorf("%s: %w", doing, err)
	case answer != "yes":
		return fmt.Errorf("%s: %w", doing, errDeclined)
	}
	return nil
}

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
