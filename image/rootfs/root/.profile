if [ "${BASH-}" ] && [ "${PS1-}" ] && [ -r ~/.bashrc ]; then
  . ~/.bashrc
fi
