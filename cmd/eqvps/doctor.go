package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"text/tabwriter"

	"github.com/eqvps/eqvps/vmm/qemu"
)

type doctorCmd struct {
	JSON bool `name:"json" help:"Print JSON."`
}

// level is how a check came out.
type level string

const (
	levelOK   level = "OK"
	levelWarn level = "WARN" // it works, but less well or less safely
	levelFail level = "FAIL" // sandboxes cannot start here
)

// finding is the outcome of one check.
type finding struct {
	Check  string `json:"check"`
	Level  level  `json:"level"`
	What   string `json:"what"`             // what there is
	Remedy string `json:"remedy,omitempty"` // what to do about it, where something is to be done
}

func okay(check, format string, args ...any) finding {
	return finding{Check: check, Level: levelOK, What: fmt.Sprintf(format, args...)}
}

func (f finding) warn(remedy string) finding { return f.at(levelWarn, remedy) }
func (f finding) fail(remedy string) finding { return f.at(levelFail, remedy) }

func (f finding) at(l level, remedy string) finding {
	f.Level, f.Remedy = l, remedy
	return f
}

func (c *doctorCmd) Run(ctx context.Context, a *app) error {
	var all []finding
	for _, check := range []func(context.Context, *app) []finding{
		checkRoot, checkMonitor, checkNetwork, checkCgroups, checkTools, checkData, checkMemory, checkImage, checkServer,
	} {
		all = append(all, check(ctx, a)...)
		if ctx.Err() != nil {
			return orSignal(ctx, ctx.Err())
		}
	}
	var err error
	if c.JSON {
		err = a.json(all)
	} else {
		err = a.findings(all)
	}
	for _, f := range all {
		if f.Level == levelFail {
			return errors.Join(err, exitCode(exitFailure))
		}
	}
	return err
}

func (a *app) findings(all []finding) error {
	w := tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', 0)
	colours := map[level]string{levelOK: green, levelWarn: yellow, levelFail: red}
	for _, f := range all {
		what := f.What
		if f.Remedy != "" {
			what = strings.TrimSuffix(what, ".") + "; " + f.Remedy
		}
		// Every first cell carries a colour or none does, so the columns stay even.
		fmt.Fprintf(w, "%s\t%s\t%s\n", colour(a.stdout, colours[f.Level], fmt.Sprintf("%-4s", f.Level)), f.Check, inert(what))
	}
	return w.Flush()
}

func checkRoot(context.Context, *app) []finding {
	f := okay("root", "user id %d", os.Geteuid())
	if os.Geteuid() != 0 {
		f = f.fail("machines and networks need root: run with sudo")
	}
	return []finding{f}
}

// checkMonitor tells what runs machines here and why.
func checkMonitor(ctx context.Context, _ *app) []finding {
	cpu := okay("processor", "hardware virtualization (%s)", virtualization())
	if virtualization() == "" {
		cpu = okay("processor", "no hardware virtualization (neither vmx nor svm)").
			warn("use a machine with it, or switch on nested virtualization, for full speed and a hard boundary")
	}
	info, err := qemu.New().Info(ctx)
	if err != nil {
		return []finding{cpu, okay("monitor", "%v", err).fail("`make deps` installs it on Debian")}
	}
	mon := okay("monitor", "%s %s with %s. %s", info.Monitor, info.Version, info.Accel, info.Reason)
	if len(info.Warnings) > 0 {
		mon = mon.warn(strings.Join(info.Warnings, " "))
	}
	return []finding{cpu, mon}
}

// virtualization names the processor's own support for machines, or "".
func virtualization() string {
	b, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(b)) {
		name, flags, _ := strings.Cut(line, ":")
		if strings.TrimSpace(name) != "flags" {
			continue
		}
		for f := range strings.FieldsSeq(flags) {
			if f == "vmx" || f == "svm" {
				return f
			}
		}
		return ""
	}
	return ""
}
