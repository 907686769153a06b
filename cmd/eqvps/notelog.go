package main

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
)

// noteLog shows what a server of this process warns of as notes for people.
type noteLog struct {
	a     *app
	attrs []slog.Attr
}

func (noteLog) Enabled(_ context.Context, l slog.Level) bool { return l >= slog.LevelWarn }

func (h noteLog) Handle(_ context.Context, r slog.Record) error {
	var b strings.Builder
	b.WriteString(r.Message)
	add := func(attr slog.Attr) bool {
		fmt.Fprintf(&b, "; %s: %s", attr.Key, attr.Value)
		return true
	}
	for _, attr := range h.attrs {
		add(attr)
	}
	r.Attrs(add)
	level := "warning"
	if r.Level >= slog.LevelError {
		level = "error"
	}
	h.a.note("%s: %s", level, inert(b.String()))
	return nil
}

func (h noteLog) WithAttrs(attrs []slog.Attr) slog.Handler {
	return noteLog{h.a, append(h.attrs[:len(h.attrs):len(h.attrs)], attrs...)}
}

func (h noteLog) WithGroup(string) slog.Handler { return h }
