// Command eqvps is all of EQVPS in one program: the server, and the command
// line that speaks REST to it like every other client.
//
// Each command is one type with a Run method; program.go is the server,
// grammar.go the whole command line at a glance.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"reflect"
	"syscall"
	"time"

	"github.com/alecthomas/kong"
)

func main() {
	ctx, stop := withSignals(context.Background())
	a := &app{stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr, now: time.Now}
	code := a.run(ctx, os.Args[1:])
	stop()
	os.Exit(code)
}

// app is what a command touches outside of itself.
type app struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	now            func() time.Time
	data, images   string // the server's folders on this machine, absolute
}

// run is one invocation, from its arguments to its exit code.
func (a *app) run(ctx context.Context, args []string) (code int) {
	// kong asks to exit in the middle of parsing after --help.
	type exit int
	defer func() {
		if r := recover(); r != nil {
			e, ok := r.(exit)
			if !ok {
				panic(r)
			}
			code = int(e)
		}
	}()
	var g grammar
	parser := kong.Must(&g,
		kong.Name("eqvps"),
		kong.Description(description),
		kong.Writers(a.stdout, a.stderr),
		kong.Exit(func(code int) { panic(exit(code)) }),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, NoExpandSubcommands: true}),
		kong.Vars(grammarVars()),
		kong.KindMapper(reflect.String, kong.MapperFunc(bytesAsTheyAre)),
		kong.BindTo(ctx, (*context.Context)(nil)),
		kong.Bind(a),
	)
	if len(args) == 0 {
		args = []string{"--help"}
	}
	command, err := parser.Parse(args)
	if err != nil {
		return a.report(usageErrorf("%v; see `eqvps %s`", err, helpFor(err)))
	}
	if err := a.setFolders(g.Data, g.Images); err != nil {
		return a.report(err)
	}
	return a.report(command.Run())
}

// bytesAsTheyAre takes an argument as it was given. kong's own way leads through
// JSON, which replaces what is not UTF-8: names of files are bytes.
func bytesAsTheyAre(ctx *kong.DecodeContext, target reflect.Value) error {
	token, err := ctx.Scan.PopValue("string")
	if err != nil {
		return err
	}
	target.SetString(token.String())
	return nil
}

// helpFor names the help page for what was being parsed when err came up.
func helpFor(err error) string {
	var p *kong.ParseError
	if errors.As(err, &p) && p.Context != nil && p.Context.Selected() != nil {
		return p.Context.Selected().Path() + " --help"
	}
	return "--help"
}

func (a *app) setFolders(data, images string) (err error) {
	if a.data, err = filepath.Abs(data); err != nil {
		return err
	}
	if images == "" {
		images = filepath.Join(a.data, "images")
	}
	a.images, err = filepath.Abs(images)
	return err
}

// note tells people something on standard error.
func (a *app) note(format string, args ...any) {
	fmt.Fprintf(a.stderr, "eqvps: "+format+"\n", args...)
}

// signalled is the cause of a context that a signal has ended.
type signalled struct{ signal syscall.Signal }

func (s signalled) Error() string { return "interrupted (" + s.signal.String() + ")" }

// withSignals ends the context at the first request to stop, so that a command
// can tidy up; the second one ends the process at once.
func withSignals(parent context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(parent)
	stops := make(chan os.Signal, 1)
	signal.Notify(stops, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	// A reader that went away must not kill this process before its sandbox is
	// deleted: writes fail instead.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	go func() {
		select {
		case s := <-stops:
			signal.Stop(stops)
			cancel(signalled{s.(syscall.Signal)})
		case <-ctx.Done():
		}
	}()
	return ctx, func() { cancel(nil) }
}
