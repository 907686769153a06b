package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/dustin/go-humanize"

	"github.com/eqvps/eqvps/client"
	"github.com/eqvps/eqvps/image"
)

type imageBuildCmd struct {
	Recipe string `type:"existingfile" placeholder:"FILE" help:"Recipe to build (default: the one built in)."`
	JSON   bool   `name:"json" help:"Print the image's manifest as JSON."`
}

func (c *imageBuildCmd) Run(ctx context.Context, a *app) error {
	recipe := image.DefaultRecipe()
	if c.Recipe != "" {
		var err error
		if recipe, err = image.LoadRecipe(c.Recipe); err != nil {
			return err
		}
	}
	img, err := a.buildImage(ctx, recipe)
	if err != nil {
		return err
	}
	if c.JSON {
		return a.json(img)
	}
	_, err = fmt.Fprintf(a.stdout, "%s (%s), %s, kernel %s, in %s\n", img.ID, img.Name, humanize.Bytes(uint64(img.Size())), img.KernelRelease, img.Dir)
	return err
}

func (a *app) buildImage(ctx context.Context, recipe *image.Recipe) (*image.Image, error) {
	img, err := image.Open(a.images).Build(ctx, recipe, image.BuildOptions{Progress: a.buildProgress()})
	return img, orSignal(ctx, err)
}

// buildProgress shows a build's steps: on a terminal the one under way is a
// line that changes, elsewhere everything is a line of its own.
func (a *app) buildProgress() image.Progress {
	if !isTerminal(a.stderr) {
		return image.PrintProgress(a.stderr)
	}
	const clear = "\r\x1b[K"
	return func(e image.Event) {
		switch {
		case e.Step == 0:
			fmt.Fprintf(a.stderr, "%s\n", e.Name)
		case e.Done:
			fmt.Fprintf(a.stderr, clear+"[%d/%d] %s: %.1f s\n", e.Step, e.Steps, e.Name, e.Elapsed.Seconds())
		default:
			line := fmt.Sprintf("[%d/%d] %s, %.0f s  %s", e.Step, e.Steps, e.Name, e.Elapsed.Seconds(), inert(e.Detail))
			fmt.Fprint(a.stderr, clear+string([]rune(line)[:min(len([]rune(line)), terminalLine)]))
		}
	}
}

// terminalLine is how much fits on one line of any terminal, so that drawing
// over it leaves nothing behind.
const terminalLine = 78

type imageListCmd struct {
	JSON bool `name:"json" help:"Print the manifests as JSON."`
}

func (c *imageListCmd) Run(a *app) error {
	list, err := image.Open(a.images).List()
	if err != nil {
		return err
	}
	if c.JSON {
		if list == nil {
			list = []*image.Image{}
		}
		return a.json(list)
	}
	now := a.now()
	rows := make([][]string, 0, len(list))
	for _, img := range list {
		rows = append(rows, []string{img.ID, img.Name, img.KernelRelease, humanize.Bytes(uint64(img.Size())), when(img.CreatedAt, now)})
	}
	return a.table([]string{"ID", "NAME", "KERNEL", "SIZE", "CREATED"}, rows)
}

type imageVerifyCmd struct {
	Image string `arg:"" default:"default" help:"Name, id, or beginning of an id (default: default)."`
}

func (c *imageVerifyCmd) Run(a *app) error {
	if err := image.Open(a.images).Verify(c.Image); err != nil {
		return fmt.Errorf("%w; make it again with `eqvps image rm %s` and `eqvps image build`", err, c.Image)
	}
	_, err := fmt.Fprintf(a.stdout, "%s is as it was built\n", c.Image)
	return err
}

type imageRmCmd struct {
	Images []string `arg:"" name:"image" help:"Names, ids, or beginnings of ids."`
	Force  bool     `help:"Also one that a sandbox runs on. It runs on, but not beyond a restart of the host."`
}

func (c *imageRmCmd) Run(ctx context.Context, a *app) error {
	store := image.Open(a.images)
	for _, ref := range c.Images {
		id := ref
		img, err := store.Get(ref)
		switch {
		case err == nil:
			id = img.ID
		case !errors.Is(err, image.ErrDamaged):
			return err
		}
		if !c.Force {
			if err := a.imageUnused(ctx, id); err != nil {
				return err
			}
		}
		if err := store.Remove(ref); err != nil {
			return err
		}
		fmt.Fprintf(a.stdout, "%s is removed\n", id)
	}
	return nil
}

// imageUnused refuses an image that a sandbox of the server here runs on.
// Where no server runs, nothing can be asked, and no sandbox is looked after.
func (a *app) imageUnused(ctx context.Context, id string) error {
	cl, err := a.connectLocal()
	var none errNoServer
	if errors.As(err, &none) {
		return nil
	}
	if err != nil {
		return err
	}
	list, err := listAll(ctx, cl, client.ListOptions{})
	if err != nil {
		return orSignal(ctx, err)
	}
	for _, sb := range list {
		if sb.Image == id {
			return fmt.Errorf("the sandbox %s runs on the image %s; delete it first, or use --force", sb.ID, id)
		}
	}
	return nil
}
