package network

import (
	"context"
	"errors"
	"sync"
)

// Pool keeps slots ready, so that making one is not on the way of a create.
type Pool struct {
	m      *Manager
	ready  chan *Slot
	wanted chan struct{} // signals that the pool may be short
	ctx    context.Context
	cancel context.CancelFunc
	filler sync.WaitGroup
}

// NewPool starts a pool that keeps size slots ready, at least one. It fills one at a
// time, and only when one was taken. When making one fails it rests until the
// next Get, which then reports its own failure.
func NewPool(m *Manager, size int) *Pool {
	ctx, cancel := context.WithCancel(context.Background())
	p := &Pool{m: m, ready: make(chan *Slot, max(size, 1)), wanted: make(chan struct{}, 1), ctx: ctx, cancel: cancel}
	p.filler.Add(1)
	go p.fill()
	p.signal()
	return p
}

func (p *Pool) signal() {
	select {
	case p.wanted <- struct{}{}:
	default: // one signal fills the whole pool
	}
}

// fill is the only sender on ready, so a slot made for a place always finds it free.
func (p *Pool) fill() {
	defer p.filler.Done()
	for {
		select {
		case <-p.ctx.Done():
			return
		case <-p.wanted:
		}
		for len(p.ready) < cap(p.ready) {
			s, err := p.m.Create(p.ctx)
			if err != nil {
				break
			}
			p.ready <- s
		}
	}
}

// Get returns a ready slot, or makes one when there is none. The caller owns the slot and
// closes it.
func (p *Pool) Get(ctx context.Context) (*Slot, error) {
	if p.ctx.Err() != nil {
		return nil, ErrClosed
	}
	defer p.signal()
	select {
	case s := <-p.ready:
		return s, nil
	default:
		return p.m.Create(ctx)
	}
}

// Close stops filling and closes the slots nobody took. Slots handed out
// remain with their owners.
func (p *Pool) Close(ctx context.Context) error {
	p.cancel()
	p.filler.Wait()
	var errs []error
	for {
		select {
		case s := <-p.ready:
			errs = append(errs, s.Close(ctx))
		default:
			return errors.Join(errs...)
		}
	}
}
