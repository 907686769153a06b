package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// maxLine is the longest line that a terminal passes on; it drops the rest
// without a word.
const maxLine = 4095

// askHidden asks for one line on a terminal that does not show it. The terminal
// is as before when it returns, also when ctx ends.
func (a *app) askHidden(ctx context.Context, tty *os.File, prompt string) (string, error) {
	fd := int(tty.Fd())
	before, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err != nil {
		return "", err
	}
	hidden := *before
	hidden.Lflag &^= unix.ECHO
	if err := unix.IoctlSetTermios(fd, unix.TCSETS, &hidden); err != nil {
		return "", err
	}
	defer func() {
		_ = unix.IoctlSetTermios(fd, unix.TCSETS, before)
		fmt.Fprintln(a.stderr) // the one that was typed is not shown either
	}()
	fmt.Fprint(a.stderr, prompt)
	type answer struct {
		line string
		err  error
	}
	got := make(chan answer, 1)
	go func() {
		line, err := bufio.NewReader(tty).ReadString('\n')
		got <- answer{line, err}
	}()
	select {
	case <-ctx.Done():
		return "", context.Cause(ctx)
	case r := <-got:
		switch {
		case r.err != nil:
			return "", fmt.Errorf("the value cannot be read: %w", r.err)
		case len(r.line) >= maxLine:
			return "", errors.New("the value is too long to be typed; use --value-file")
		}
		return strings.TrimSuffix(r.line, "\n"), nil
	}
}
