package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/eqvps/eqvps"
	"github.com/eqvps/eqvps/wire"
)

type mkdirCmd struct {
	Mode string `placeholder:"OCTAL" help:"Permissions of the folder (default 0755)."`
	ID   string `arg:"" help:"Id of the sandbox."`
	Path string `arg:"" help:"Absolute path; parents are made as needed."`
	JSON bool   `name:"json" help:"Print JSON."`
}

func (c *mkdirCmd) Run(ctx context.Context, a *app) error {
	mode, err := eqvps.ParseMode(c.Mode)
	if err != nil {
		return usageFrom(err)
	}
	if c.Mode == "" {
		mode = 0
	}
	cl, err := a.connect()
	if err != nil {
		return err
	}
	fi, err := cl.MakeDir(ctx, c.ID, c.Path, mode)
	if err != nil {
		return orSignal(ctx, err)
	}
	if c.JSON {
		return a.json(wire.NewFileInfo(fi))
	}
	_, err = fmt.Fprintln(a.stdout, inert(fi.Path))
	return err
}

type mvCmd struct {
	Force bool   `short:"f" help:"Replace what is there: a file, a link or an empty folder."`
	ID    string `arg:"" help:"Id of the sandbox."`
	From  string `arg:"" help:"Absolute path of what moves."`
	To    string `arg:"" help:"Its new absolute path, not a folder to move into; parents are made as needed."`
	JSON  bool   `name:"json" help:"Print JSON."`
}

func (c *mvCmd) Run(ctx context.Context, a *app) error {
	cl, err := a.connect()
	if err != nil {
		return err
	}
	fi, err := cl.Move(ctx, c.ID, eqvps.Move{From: c.From, To: c.To, Overwrite: c.Force})
	if err != nil {
		return orSignal(ctx, err)
	}
	if c.JSON {
		return a.json(wire.NewFileInfo(fi))
	}
	_, err = fmt.Fprintln(a.stdout, inert(fi.Path))
	return err
}

type rmCmd struct {
	Recursive bool     `short:"r" help:"Also folders that are not empty, with all that is in them."`
	ID        string   `arg:"" help:"Id of the sandbox."`
	Paths     []string `arg:"" name:"path" help:"Absolute paths. A link goes, what it leads to stays."`
	JSON      bool     `name:"json" help:"Print JSON."`
}

func (c *rmCmd) Run(ctx context.Context, a *app) error {
	cl, err := a.connect()
	if err != nil {
		return err
	}
	removed := []wire.Removed{}
	var errs []error
	for _, path := range c.Paths {
		n, err := cl.Remove(ctx, c.ID, path, c.Recursive)
		if err != nil {
			errs = append(errs, orSignal(ctx, err))
			continue
		}
		removed = append(removed, wire.NewRemoved(path, eqvps.Removal{Entries: n, Complete: true}))
		if !c.JSON {
			fmt.Fprintf(a.stdout, "%s: %d removed\n", inert(path), n)
		}
	}
	if c.JSON {
		errs = append(errs, a.json(removed))
	}
	return errors.Join(errs...)
}

type linkCmd struct {
	Put  bool   `help:"A link that uploads instead of one that downloads."`
	TTL  int64  `name:"ttl" placeholder:"SECONDS" help:"How long it lives, 60 to 3600 (default 900)."`
	Mode string `placeholder:"OCTAL" help:"With --put: permissions of the file (default 0644)."`
	ID   string `arg:"" help:"Id of the sandbox."`
	Path string `arg:"" help:"Absolute path of the one file it is for."`
	JSON bool   `name:"json" help:"Print JSON."`
}

func (c *linkCmd) Run(ctx context.Context, a *app) error {
	mode, err := eqvps.ParseMode(c.Mode)
	if err != nil {
		return usageFrom(err)
	}
	if c.Mode == "" {
		mode = 0
	}
	method := "GET"
	if c.Put {
		method = "PUT"
	}
	cl, err := a.connect()
	if err != nil {
		return err
	}
	l, err := cl.CreateLink(ctx, c.ID, c.Path, method, time.Duration(c.TTL)*time.Second, mode)
	if err != nil {
		return orSignal(ctx, err)
	}
	if c.JSON {
		return a.json(l)
	}
	_, err = fmt.Fprintln(a.stdout, inert(l.URL))
	return err
}
